"""From a graph to an executable: pipelines, schedules, the catalog of kernel families."""
