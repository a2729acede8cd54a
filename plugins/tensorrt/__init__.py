"""TensorRT plugin library: IPluginV3 layer over the CUDA launchers, and how it is built."""
