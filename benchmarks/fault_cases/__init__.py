"""The cases of benchmarks/faults.py, a module an area; case.py, scene.py and processes.py are what they share."""
