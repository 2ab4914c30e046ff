"""What `dspark doctor` checks: this machine, a pair, a cluster with its cell."""
