"""Runtime: a binary and tensors to a launch; CUDA, HIP and the emulator behind one interface.

tensors         any framework's tensor as one light record
checks          what is refused of the tensors of a call
outputs         O and LSE from the framework of Q
launch_values   spec + plan + shapes -> grid and parameter block
base            the interface: Backend, Loaded
cuda, hip, emulator_backend   its three implementations; vendor modules are imported there only
launcher        one kernel on one backend: what a call does
devices         which backend serves which memory
"""
