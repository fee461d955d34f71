"""The process: scripts, cores, exit codes, progress, forks, the garbage collector."""
