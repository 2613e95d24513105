"""Other libraries' private steps on the same networks, each in an environment of its own."""
