import torch

# The networks here are small: a second thread costs more than it brings, and the tests run side by side.
torch.set_num_threads(1)
