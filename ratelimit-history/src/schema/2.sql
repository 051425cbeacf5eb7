-- What goes first where the database is too large. NULL while an episode is open.
ALTER TABLE episodes ADD COLUMN worth INTEGER AS (
    CASE WHEN ended IS NULL THEN NULL
         WHEN would = 0 AND until IS NOT NULL THEN 2 -- a ban
         WHEN ended - began >= 60000 THEN 1          -- a refusal of a minute or longer
         ELSE 0 END                                  -- a shorter one
) VIRTUAL;
CREATE INDEX episodes_by_worth ON episodes (worth, ended);

-- 0 what applications charge, which may be much; 1 what a user or the daemon did.
ALTER TABLE acts ADD COLUMN worth INTEGER AS (what <> 'charge') VIRTUAL;
CREATE INDEX acts_by_worth ON acts (worth, time);
DROP INDEX acts_by_time;
