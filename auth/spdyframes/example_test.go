package spdyframes_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	"github.com/moby/spdystream/spdy"

	"github.com/hawser-project/hawser/auth/spdyframes"
)

// A client of exec may open the streams that its request names, and no more.
func Example() {
	var sent bytes.Buffer
	framer, err := spdy.NewFramer(&sent, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for i, kind := range []string{"error", "stdout", "stdin"} {
		if err := framer.WriteFrame(&spdy.SynStreamFrame{StreamId: spdy.StreamId(2*i + 1), Headers: http.Header{"Streamtype": {kind}}}); err != nil {
			fmt.Println(err)
		}
	}
	_, err = io.Copy(io.Discard, spdyframes.NewGuard(&sent, spdyframes.Limits{Streams: 2}))
	fmt.Println(err)
	// Output: refused: more than the 2 streams of the request
}
