-- Holds each job in these partitions that requests GPUs, so that SIA decides when the job starts.
-- Set JobSubmitPlugins=lua in slurm.conf and put this file into the same folder.
local pools = { vision = true, speech = true, robots = true }

-- User ids that may release held jobs: Slurm's own user and the daemon's (getent passwd NAME).
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

-- Value of job.shared for --exclusive. =user (2) and =mcs (3) reserve the node, but do not allocate its GPUs.
local EXCLUSIVE = 0

-- Returns true if the job takes whole nodes, and so all of their GPUs, without requesting GPUs.
local function takes_nodes(job, record)
   local alone = job.shared == EXCLUSIVE
   return alone and not asks_for_gpus(job) and not asks_for_gpus(record)
end

local function refused()
   slurm.log_user("--exclusive takes all GPUs of a node; request them with --gres=gpu:N")
   return slurm.ERROR
end

-- Returns the signal in a line of the script like #SBATCH --signal=B:USR1@60, with the B: that restricts it to the batch
-- script, or nil. Slurm does not show a plugin the option on the command line.
local function signal_in(script)
   for line in string.gmatch(script or "", "[^\n]+") do
      local said = string.match(line, "^#SBATCH.*%-%-signal[=%s]+([%w:]+)")
      if said ~= nil then
         said = string.upper(said)
         local to = string.find(said, "^R?B:") and "B:" or ""
         local signal = string.match(said, "([A-Z][A-Z0-9]+)$")
         return signal and to .. signal
      end
   end
   return nil
end

-- Users write the job's fields for SIA into the comment, like --comment=sia:deadline=in 2h,value=20. Options that Slurm
-- has itself are added to them: with --requeue the job can be stopped and run again, and the signal of --signal tells it
-- to save its work.
local function note_options(job)
   local said = job.comment or ""
   local more = {}
   if job.requeue == 1 and not string.find(said, "preemptible=") then
      table.insert(more, "preemptible=restart")
   end
   local signal = signal_in(job.script)
   if signal ~= nil and not string.find(said, "checkpoint=") then
      table.insert(more, "checkpoint=" .. signal)
   end
   if #more == 0 then
      return
   end
   local added = table.concat(more, ",")
   if said == "" then
      job.comment = "sia:" .. added
   elseif string.find(said, "^sia:") then
      job.comment = said .. "," .. added
   else
      slurm.log_user("SIA does not read --requeue and --signal here: begin the comment with sia:" .. added)
   end
end

-- Returns true if at least one of the job's partitions is a pool; without a partition, the default counts.
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
         note_options(job)
      end
   end
   return slurm.SUCCESS
end

-- Owners may neither release a held job nor move it to another partition. A job that gets GPUs or moves into a pool
-- by this change is held from now on.
function slurm_job_modify(job, record, partitions, uid)
   if operators[uid] then
      return slurm.SUCCESS
   end
   local moved = job.partition ~= nil and job.partition ~= ""
   if record.priority == 0 and is_of_a_pool(record.partition, partitions) then
      local released = job.priority ~= nil and job.priority ~= 0 and job.priority ~= slurm.NO_VAL
      if released or moved then
         slurm.log_user("SIA decides when this job starts; see: sia job slurm-" .. record.job_id)
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
