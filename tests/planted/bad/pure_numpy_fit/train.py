# kinds: unseeded_numpy
import numpy as np

x = np.linspace(0, 1, 50)
y = 2 * x + np.random.normal(0, 0.1, 50)  # culprit
slope = 0.0
for _ in range(100):
    slope -= 0.1 * np.mean(2 * (slope * x - y) * x)
print(f"slope {slope:.6f}")
