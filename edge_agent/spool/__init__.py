"""What the device has counted and not yet delivered: a bounded queue on disk, oldest first.

    arithmetic  PURE  what a record takes, what makes room, and what a gap covers
    database    the SQLite file; one thread's
    spool       the shell: records wait in memory for the next write, and one thread writes

Every record has a number, from 1 and without holes. Where there was no room, the oldest go, and one gap
record stands for them all: it has the number of the last of them and says the first. A number is never
given twice, so whoever counts the records knows by the number what was counted already.

A record is read for delivery only once it is on the disk for good: a number that was delivered and then
lost to a power cut would come again with other content.

Inference waits for none of this. While the disk is full or cannot be written, records gather in memory,
within a bound; then the oldest of them become a gap too.
"""

from edge_agent.spool.spool import Batch, Held, Spool

__all__ = ["Batch", "Held", "Spool"]
