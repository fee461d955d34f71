"""The process: scripts, cores, exit codes, progress, stages, the garbage collector."""
