"""What a number format saves and costs on a deployment. Knows no screen and no clock of its own: times come from the estimate."""
