"""A model one decoder layer at a time, so that memory holds a layer and not the model.

Each layer becomes a model of transformers with that layer alone, behind the class's own masks and rotary embedding; a
second one without layers holds embedding, final norm and output head. What goes from layer to layer lies on the disk.
The arithmetic and the order of the products are those of the whole model, so the results are the same to the bit.
"""
