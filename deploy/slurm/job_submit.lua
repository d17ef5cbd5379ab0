-- Holds each job of these partitions that asks for GPUs, so that SIA decides when it starts.
-- slurm.conf: JobSubmitPlugins=lua; this file beside it.
local pools = { vision = true, speech = true, robots = true }

-- Users who may release what is held: Slurm's own, and the daemon's (getent passwd NAME).
local operators = { [0] = true }

local ASKED_BY = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket", "gres" }

local function asks_for_gpus(job)
   for _, field in ipairs(ASKED_BY) do
      local said = job[field]
      if said ~= nil and string.find(said, "gpu") then
         return true
      end
   end
   return false
end

-- What job.shared says of --exclusive. =user (2) and =mcs (3) have a node to themselves, and not its GPUs.
local EXCLUSIVE = 0

-- Whether it takes GPUs that it does not ask for: those of whole nodes.
local function takes_nodes(job, record)
   local alone = job.shared == EXCLUSIVE
   return alone and not asks_for_gpus(job) and not asks_for_gpus(record)
end

local function refused()
   slurm.log_user("--exclusive takes all GPUs of its nodes: ask for them, by --gres=gpu:N")
   return slurm.ERROR
end

-- Of a job that may run in several partitions, one that is a pool is enough.
local function is_of_a_pool(named, partitions)
   if named == nil or named == "" then
      for name, partition in pairs(partitions) do
         if partition.flag_default ~= 0 and pools[name] then
            return true
         end
      end
      return false
   end
   for name in string.gmatch(named, "[^,]+") do
      if pools[name] then
         return true
      end
   end
   return false
end

function slurm_job_submit(job, partitions, uid)
   if is_of_a_pool(job.partition, partitions) then
      if takes_nodes(job, {}) then
         return refused()
      end
      if asks_for_gpus(job) then
         job.priority = 0
      end
   end
   return slurm.SUCCESS
end

-- Neither releases its owner a job, nor moves it to where nobody holds it; and what becomes a job
-- with GPUs of a pool only now waits from now on.
function slurm_job_modify(job, record, partitions, uid)
   if operators[uid] then
      return slurm.SUCCESS
   end
   local moved = job.partition ~= nil and job.partition ~= ""
   if record.priority == 0 and is_of_a_pool(record.partition, partitions) then
      local released = job.priority ~= nil and job.priority ~= 0 and job.priority ~= slurm.NO_VAL
      if released or moved then
         slurm.log_user("this job waits for its turn: sia job slurm-" .. record.job_id)
         return slurm.ERROR
      end
      return slurm.SUCCESS
   end
   local changed = moved or asks_for_gpus(job)
   local gpus = asks_for_gpus(job) or asks_for_gpus(record)
   if is_of_a_pool(moved and job.partition or record.partition, partitions) then
      if takes_nodes(job, record) then
         return refused()
      end
      if changed and gpus then
         job.priority = 0
      end
   end
   return slurm.SUCCESS
end
