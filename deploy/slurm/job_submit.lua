-- Holds each job of these partitions that asks for GPUs, so that SIA decides when it starts.
-- slurm.conf: JobSubmitPlugins=lua; this file beside it.
local pools = { vision = true, speech = true, robots = true }

local function asks_for_gpus(job)
   for _, field in ipairs({ "tres_per_node", "tres_per_job", "tres_per_task", "gres" }) do
      local said = job[field]
      if said ~= nil and string.find(said, "gpu") then
         return true
      end
   end
   return false
end

function slurm_job_submit(job, partitions, uid)
   if pools[job.partition or ""] and asks_for_gpus(job) then
      job.priority = 0
   end
   return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
   return slurm.SUCCESS
end
