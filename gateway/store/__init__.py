"""What outlives a process. `profiles` holds measurements in one file of the state directory."""
