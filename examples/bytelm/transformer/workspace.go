package transformer

import "fmt"

// Workspace holds everything but weights that a rank needs to train on
// micro-batches of a fixed size: allocated once, used by one goroutine at a time.
type Workspace struct {
	// X holds the inputs that the backward pass starts from again, each
	// [batch*context, dim]: X[i] is that of block i, X[Layers] that of the head.
	X [][]float32
	// Dx [batch*context, dim] is the gradient on its way back.
	Dx []float32

	config Config
	batch  int
	team   *team
	state  blockState
	grad   blockGradient
	head   headState

	// The tasks of a pass, here so that starting one allocates nothing.
	forward     blockForward
	backward    blockBackward
	weights     blockGradients
	headPass    headPass
	headWeights headGradients
}

// NewWorkspace allocates for micro-batches of batch sequences. Work is spread over the given
// number of goroutines, at most batch of which are busy; their number changes
// no bit of any result.
func NewWorkspace(c Config, batch, workers int) (*Workspace, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if batch < 1 || workers < 1 {
		return nil, fmt.Errorf("transformer: batch is %d and workers is %d, both must be at least 1", batch, workers)
	}
	rows := batch * c.Context
	ws := &Workspace{
		Dx: make([]float32, rows*c.Dim), config: c, batch: batch, team: newTeam(workers),
		state: newBlockState(c, rows), grad: newBlockGradient(c, rows), head: newHeadState(c, batch),
	}
	for range c.Layers + 1 {
		ws.X = append(ws.X, make([]float32, rows*c.Dim))
	}
	return ws, nil
}

// Close ends the workspace's goroutines. The workspace must not be used after it.
func (ws *Workspace) Close() { ws.team.close() }

// rows is the number of tokens of a micro-batch.
func (ws *Workspace) rows() int { return ws.batch * ws.config.Context }
