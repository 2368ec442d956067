package transformer

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// matrix is a view of rows that lie Stride elements apart.
type matrix = blas32.General

const (
	plain      = blas.NoTrans
	transposed = blas.Trans
)

// tileRows x tileCols is the part of a product that one call of gonum computes.
// A call for fewer than four 64x64 tiles stays on the caller's goroutine and
// allocates nothing.
const (
	tileRows = 64
	tileCols = 192
)

// dense views a buffer without gaps as a matrix.
func dense(data []float32, rows, cols int) matrix {
	return matrix{Rows: rows, Cols: cols, Stride: cols, Data: data}
}

// window views rows x cols elements of m from (row, col) on.
func window(m matrix, row, col, rows, cols int) matrix {
	return matrix{Rows: rows, Cols: cols, Stride: m.Stride, Data: m.Data[row*m.Stride+col:]}
}

// multiply sets c = alpha*a*b + beta*c, with a and b transposed as asked. Each
// element of c is summed over the inner dimension in one fixed order.
func multiply(aForm, bForm blas.Transpose, alpha float32, a, b matrix, beta float32, c matrix) {
	for row := 0; row < c.Rows; row += tileRows {
		rows := min(tileRows, c.Rows-row)
		left := leftRows(aForm, a, row, rows)
		for col := 0; col < c.Cols; col += tileCols {
			cols := min(tileCols, c.Cols-col)
			right := rightCols(bForm, b, col, cols)
			blas32.Gemm(aForm, bForm, alpha, left, right, beta, window(c, row, col, rows, cols))
		}
	}
}

// leftRows views the part of a that makes rows row..row+rows of a product.
func leftRows(form blas.Transpose, a matrix, row, rows int) matrix {
	if form == plain {
		return window(a, row, 0, rows, a.Cols)
	}
	return window(a, 0, row, a.Rows, rows)
}

// rightCols views the part of b that makes columns col..col+cols of a product.
func rightCols(form blas.Transpose, b matrix, col, cols int) matrix {
	if form == plain {
		return window(b, 0, col, b.Rows, cols)
	}
	return window(b, col, 0, cols, b.Cols)
}
