-- Why an episode ended, as a label. NULL while it is open, and in rows of earlier versions.
ALTER TABLE episodes ADD COLUMN cause TEXT;

-- Times in which events were lost before they came here, or found no room in the queue.
CREATE TABLE losses (
    began  INTEGER NOT NULL PRIMARY KEY,
    ended  INTEGER NOT NULL,
    events INTEGER NOT NULL -- how many were lost
) STRICT;
