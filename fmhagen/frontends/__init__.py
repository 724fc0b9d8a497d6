"""Front ends: fmhagen under the names, and with the parameters, of libraries that people have.

flash          flash_attn_func, flash_attn_varlen_func
kvcache        flash_attn_with_kvcache: append, rotate, attend
sdpa           scaled_dot_product_attention
flex           flex_attention
torch_ops      custom operators of PyTorch, for torch.compile and autocast; needs torch
transformers   attn_implementation="fmhagen" of Hugging Face's transformers; needs both

The first four take NumPy, PyTorch and CuPy tensors alike. What a function of the same name
elsewhere takes and fmhagen does not is refused by its name.
"""
