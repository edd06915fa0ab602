"""Why is it slow? Findings about clients, brokers and disks, from their metrics, in one sentence with evidence."""
