package transformer

// linear sets y = x*w + bias, with x [rows, in], w [in, out] and y [rows, out].
func linear(w, bias []float32, x, y matrix) {
	for r := range y.Rows {
		copy(y.Data[r*y.Stride:][:y.Cols], bias)
	}
	multiply(plain, plain, 1, x, dense(w, x.Cols, y.Cols), 1, y)
}

// linearInput sets dx = dy*wᵀ, the gradient of linear's input.
func linearInput(w []float32, dy, dx matrix) {
	multiply(plain, transposed, 1, dy, dense(w, dx.Cols, dy.Cols), 0, dx)
}

// linearWeights adds xᵀ*dy to dw and the column sums of dy to dbias.
func linearWeights(dw, dbias []float32, x, dy matrix) {
	multiply(transposed, plain, 1, x, dy, 1, dense(dw, x.Cols, dy.Cols))
	for r := range dy.Rows {
		addTo(dbias, dy.Data[r*dy.Stride:])
	}
}

// addTo adds the first len(sum) elements of x to sum.
func addTo(sum, x []float32) {
	x = x[:len(sum)]
	for i := range sum {
		sum[i] += x[i]
	}
}
