"""The wire formats. One file a protocol: its request types, how they become jobs, and how steps
become its events. Nothing else in the server knows a field name of a protocol."""
