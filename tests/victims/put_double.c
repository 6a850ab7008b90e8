// A function of the same name in another library takes other arguments.
double put(double x, int times) { return x * times; }
