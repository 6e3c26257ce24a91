"""What the machine and its system offer: paths, processors, memory, a clock, processes that end with their parent."""
