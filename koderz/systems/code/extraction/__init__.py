"""Reading a model's reply: from its text to the code in it. `extraction` is the way in."""
