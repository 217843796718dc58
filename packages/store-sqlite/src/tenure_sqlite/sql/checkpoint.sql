-- Prevents: a checkpoint beside a commit, which SQLite before 3.51.3 can lose commits by (its "WAL-reset bug").
--
-- A statement that writes has the file's write lock while it is evaluated, so nobody commits while tenure_checkpoint()
-- runs. It returns 0: nothing is deleted.
DELETE FROM tenure_clock WHERE tenure_checkpoint() <> 0;
