"""What people bring: small data sets in the layouts and with the faults of others, whose pictures show their labels."""
