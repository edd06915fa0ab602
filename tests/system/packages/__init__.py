"""What users install: wheels, the container's entry point, units of systemd, the Helm chart, the Debian package."""
