"""The paper's theory as pure functions of tensors and networks."""
