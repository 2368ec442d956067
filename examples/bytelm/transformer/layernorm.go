package transformer

import "math"

// epsilon keeps the layer norm of a constant row finite.
const epsilon = 1e-5

// moments are what the backward pass of a layer norm needs of a row.
type moments struct {
	mean    float32
	inverse float32 // 1 / sqrt(variance + epsilon)
}

// layerNorm brings each row of x, len(gain) wide, to mean 0 and variance 1, then
// sets y = normal*gain + bias. It leaves the rows' moments in stats.
func layerNorm(gain, bias, x, y []float32, stats []moments) {
	dim := len(gain)
	for r := range stats {
		row, out := x[r*dim:][:dim], y[r*dim:][:dim]
		s := rowMoments(row)
		for i, v := range row {
			out[i] = (v-s.mean)*s.inverse*gain[i] + bias[i]
		}
		stats[r] = s
	}
}

func rowMoments(row []float32) moments {
	var sum, squares float32
	for _, v := range row {
		sum += v
	}
	mean := sum / float32(len(row))
	for _, v := range row {
		squares += (v - mean) * (v - mean)
	}
	variance := float64(squares) / float64(len(row))
	return moments{mean, float32(1 / math.Sqrt(variance+epsilon))}
}

// layerNormInput adds the gradient of layerNorm's input to dx: with n the
// normalized row and d = dy*gain, that is inverse*(d - mean(d) - n*mean(d*n)).
func layerNormInput(gain, x, dy, dx []float32, stats []moments) {
	dim := len(gain)
	for r, s := range stats {
		row, grad, out := x[r*dim:][:dim], dy[r*dim:][:dim], dx[r*dim:][:dim]
		var sum, along float32
		for i, v := range row {
			d := grad[i] * gain[i]
			sum += d
			along += d * (v - s.mean) * s.inverse
		}
		sum /= float32(dim)
		along /= float32(dim)
		for i, v := range row {
			n := (v - s.mean) * s.inverse
			out[i] += s.inverse * (grad[i]*gain[i] - sum - n*along)
		}
	}
}

// layerNormWeights adds the gradients of gain and bias, summed over the rows.
func layerNormWeights(dgain, dbias, x, dy []float32, stats []moments) {
	dim := len(dgain)
	for r, s := range stats {
		row, grad := x[r*dim:][:dim], dy[r*dim:][:dim]
		for i, v := range row {
			dgain[i] += grad[i] * (v - s.mean) * s.inverse
			dbias[i] += grad[i]
		}
	}
}
