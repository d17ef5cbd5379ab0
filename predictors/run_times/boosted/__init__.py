"""Run times by boosted trees, mixed with life tables: what is known of a job, trees, decisions."""
