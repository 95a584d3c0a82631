"""What working while a rank is late is worth: the model, figures from simulated schedules, and a picture."""
