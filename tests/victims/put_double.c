// Its namesake in another library takes other things.
double put(double x, int times) { return x * times; }
