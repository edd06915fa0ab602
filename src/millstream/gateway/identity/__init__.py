"""Who calls the gateway: credentials, the connection of each caller to the cluster, sessions of the console."""
