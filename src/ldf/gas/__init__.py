"""Gas networks: the compressors that keep the pressure up at the least effort."""
