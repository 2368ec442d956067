package transformer

// EmbedWeights are the token embedding and the position embedding, or their
// gradients.
type EmbedWeights struct {
	Wte []float32 // [Vocab, Dim]
	Wpe []float32 // [Context, Dim]
}

// Embed sets x [batch*context, dim] to the sum of each token's and its
// position's embedding.
func (ws *Workspace) Embed(w EmbedWeights, tokens []byte, x []float32) {
	dim := ws.config.Dim
	for r, token := range tokens[:ws.rows()] {
		row := x[r*dim:][:dim]
		copy(row, w.Wte[int(token)*dim:])
		addTo(row, w.Wpe[r%ws.config.Context*dim:])
	}
}

// EmbedBackward adds the embeddings' gradients to g, from the gradient dx of
// Embed's output. Rows are added in order.
func (ws *Workspace) EmbedBackward(g EmbedWeights, tokens []byte, dx []float32) {
	dim := ws.config.Dim
	for r, token := range tokens[:ws.rows()] {
		row := dx[r*dim:]
		addTo(g.Wte[int(token)*dim:][:dim], row)
		addTo(g.Wpe[r%ws.config.Context*dim:][:dim], row)
	}
}
