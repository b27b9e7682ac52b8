"""How wrong the forecast is: the same requests and policies, executed on a device and simulated, compared.

`gates` reads the file that names scenario, loads and gates; `runs` executes and simulates; `compare` turns both into
errors beside the noise of the device, and verdicts; `validate` does it for every policy at every load.
"""
