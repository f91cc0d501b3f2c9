// Tests of what tells two hubs with one identity apart, and of what hubs publish.

package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/controlplane/apitest"
)

// soles makes hubs of one identity.
func soles(t *testing.T, names ...string) (all []*sole) {
	t.Helper()
	api, _, err := apitest.New()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		all = append(all, &sole{
			leases: api.CoordinationV1().Leases(nodekeys.Namespace), name: "hub-x", me: name, dir: "/data",
			log: slog.New(slog.DiscardHandler), clear: make(chan struct{}),
		})
	}
	return all
}

// TestTwoHubsOfOneIdentity: the second says who the first is and ends, having begun nothing.
func TestTwoHubsOfOneIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := soles(t, "host-a at 10.0.0.1:8132, process 1", "host-b at 10.0.0.2:8132, process 2")
		ctx, stop := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { first <- s[0].run(ctx) }()
		<-s[0].clear
		err := s[1].run(ctx)
		if err == nil || !strings.Contains(err.Error(), "host-a at 10.0.0.1:8132") || !strings.Contains(err.Error(), "--data-dir /data") || strings.Contains(err.Error(), "\n") {
			t.Errorf("the second says %v", err)
		}
		select {
		case <-s[1].clear:
			t.Error("the second one's controllers ran")
		default:
		}
		stop()
		if err := <-first; err != nil {
			t.Errorf("the first says %v", err)
		}
	})
}

// TestHubAfterItself: a hub that was stopped is followed at once, and one that was killed
// once its Lease has run out.
func TestHubAfterItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := soles(t, "1", "2", "3")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s[0].run(ctx) }()
		<-s[0].clear
		stop()
		<-ended
		if err := s[1].look(t.Context()); err != nil || !s[1].held {
			t.Errorf("after one that was stopped: %v", err)
		}
		ctx, stop = context.WithCancel(t.Context())
		began := time.Now()
		go func() { ended <- s[2].run(ctx) }()
		<-s[2].clear
		if took := time.Since(began); took < soleFor || took > soleFor+soleEvery {
			t.Errorf("after one that was killed it takes %v", took)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestHubsPublishTogether: each hub's authority is there beside the others', once, and
// those that have expired are not.
func TestHubsPublishTogether(t *testing.T) {
	a, b, old := pkitest.New(t, "a").Cert, pkitest.New(t, "b").Cert, pkitest.New(t, "old").Cert
	now := time.Now()
	var data map[string]string
	for _, own := range [][]*x509.Certificate{{old}, {a}, {b}, {a}} {
		next, err := withAuthorities(data, own, now)
		if err != nil {
			t.Fatal(err)
		}
		data = next
	}
	if n := strings.Count(data[hubKey], "BEGIN"); n != 3 {
		t.Errorf("there are %d authorities, want 3", n)
	}
	data["other"] = "kept"
	if next, err := withAuthorities(data, []*x509.Certificate{a}, a.NotAfter.Add(time.Second)); err != nil || next[hubKey] != "" || next["other"] != "kept" {
		t.Errorf("after their end there is %q, %v", next, err)
	}
	many := &bytes.Buffer{}
	for range maxHubs {
		many.WriteString(string(pkitest.PEM("CERTIFICATE", pkitest.New(t, "x").Cert.Raw)))
	}
	if _, err := withAuthorities(map[string]string{hubKey: many.String()}, []*x509.Certificate{a}, now); err == nil {
		t.Error("there is no bound")
	}
}

// TestLeaseNotToBeHad: a hub that may not read Leases goes on, and says what it cannot tell.
func TestLeaseNotToBeHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := soles(t, "1")[0]
		var log bytes.Buffer
		s.log = slog.New(slog.NewTextHandler(&log, nil))
		s.leases = refusing{s.leases}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.run(ctx) }()
		<-s.clear
		<-time.After(time.Minute)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "no leases") {
			t.Errorf("the log says\n%s", &log)
		}
	})
}

// refusing is Leases that nobody may read.
type refusing struct {
	coordinationclient.LeaseInterface
}

func (refusing) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	return nil, errors.New("no leases")
}
