"""The load generator of `dspark bench`: sends requests on a schedule, records the answers and
sums them up."""
