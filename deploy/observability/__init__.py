"""What watches a cell: Prometheus, its alerts, the Grafana dashboard."""
