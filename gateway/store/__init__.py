"""What outlives a process. `profiles` holds measurements in one file of the state directory; `artifacts`
looks at the model files that the configuration names."""
