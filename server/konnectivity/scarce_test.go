package konnectivity

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// TestScarceDescriptors: a gRPC connection that came while descriptors were scarce makes dials
// once they are not.
func TestScarceDescriptors(t *testing.T) {
	socket := onSocket(t, Config{Dial: discard})
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	const limit = 512 // 16 are the process's own, and the 16 before those are scarce
	few := was
	few.Cur = limit
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()
	var taken []*os.File
	for len(taken) == 0 || taken[len(taken)-1].Fd() < limit-30 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		taken = append(taken, f)
	}
	cc, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	r := &rawClient{t: t, conn: cc}
	if r.stream, err = client.NewProxyServiceClient(cc).Proxy(t.Context()); err != nil {
		t.Fatal(err)
	}
	for random := range int64(2) {
		r.send(dialReq(1 + random))
		if p := r.recv().GetDialResponse(); !strings.Contains(p.GetError(), "no file descriptors to spare") {
			t.Errorf("while descriptors are scarce: %v", p)
		}
	}
	for _, f := range taken {
		_ = f.Close()
	}
	r.dial(3)
}
