// What mask and score functions are written in, besides the isa layer: the same on every target.

// The smaller of two numbers.
FMHAGEN_DEVICE i32 minimum_i32(i32 a, i32 b) {
  return a < b ? a : b;
}

// The larger of two numbers.
FMHAGEN_DEVICE i32 maximum_i32(i32 a, i32 b) {
  return a < b ? b : a;
}

// The distance of a number from 0.
FMHAGEN_DEVICE i32 absolute_i32(i32 value) {
  return value < 0 ? -value : value;
}

// value / divisor rounded down, as Python's //; C++ rounds towards zero.
FMHAGEN_DEVICE i32 floor_div(i32 value, i32 divisor) {
  const i32 quotient = value / divisor;
  return value % divisor != 0 && (value < 0) != (divisor < 0) ? quotient - 1 : quotient;
}

// value - divisor * floor_div(value, divisor), as Python's %: it has the sign of the divisor.
FMHAGEN_DEVICE i32 floor_mod(i32 value, i32 divisor) {
  const i32 remainder = value % divisor;
  return remainder != 0 && (remainder < 0) != (divisor < 0) ? remainder + divisor : remainder;
}
