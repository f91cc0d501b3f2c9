package apiserver_test

// Test of a key that another program keeps (KMS v2).

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kmsapi "k8s.io/kms/apis/v2"
	"k8s.io/kms/pkg/service"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// xor is a plugin whose key is one byte.
type xor byte

func (x xor) flip(text []byte) []byte {
	out := make([]byte, len(text))
	for i, b := range text {
		out[i] = b ^ byte(x)
	}
	return out
}

// Encrypt implements service.Service.
func (x xor) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	return &service.EncryptResponse{Ciphertext: x.flip(data), KeyID: "one"}, nil
}

// Decrypt implements service.Service.
func (x xor) Decrypt(_ context.Context, _ string, req *service.DecryptRequest) ([]byte, error) {
	return x.flip(req.Ciphertext), nil
}

// Status implements service.Service.
func (x xor) Status(context.Context) (*service.StatusResponse, error) {
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: "one"}, nil
}

// startPlugin serves x on a socket until stop is called.
func startPlugin(t *testing.T, socket string, x xor) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(s, service.NewGRPCService(socket, 0, x))
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	return func() {
		s.Stop()
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	}
}

// A plugin's key encrypts what is in the store. While the plugin is gone the server says
// that it is not ready, lives, and reads by what it keeps of the key. A key of the file
// takes the plugin's place, and then nothing asks for that.
func TestKMS(t *testing.T) {
	t.Parallel() // the library believes a plugin for 20 s
	dir := t.TempDir()
	run, err := os.MkdirTemp("", "kms") // a short path, for the socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(run)
	socket := filepath.Join(run, "s")
	stop := startPlugin(t, socket, 0x55)
	file := filepath.Join(run, "keys.yaml")
	plugin := "kms/unix://" + socket
	keysFile(t, file, plugin)
	e := apiserver.Encryption{ConfigFile: file, Reload: true}
	withKeys(t, dir, e, func(in *instance) {
		secrets := in.client.CoreV1().Secrets("default")
		health := func(path string) string {
			body, _ := in.client.Discovery().RESTClient().Get().AbsPath(path).Param("verbose", "").DoRaw(t.Context())
			return string(body)
		}
		must(secrets.Create(t.Context(), secretNamed("s", "hidden-by-the-plugin"), metav1.CreateOptions{}))(t)
		read(t, in, "s", "hidden-by-the-plugin")
		if inStore(t, dir, "hidden-by-the-plugin") || !inStore(t, dir, "k8s:enc:kms:v2:plugin:") {
			t.Error("the secret is not in the store as the plugin encrypts it")
		}
		if text := health("/readyz"); !strings.Contains(text, "[+]kms-providers ok") {
			t.Error(text)
		}
		keysFile(t, file, "aesgcm/one", plugin)
		until(t, "what is written needs the file's key", func() bool {
			s := must(secrets.Get(t.Context(), "s", metav1.GetOptions{}))(t)
			must(secrets.Update(t.Context(), s, metav1.UpdateOptions{}))(t)
			return inStore(t, dir, "k8s:enc:aesgcm:v1:one:")
		})
		stop()
		until(t, "the server is not ready", func() bool { return strings.Contains(health("/readyz"), "[-]kms-providers failed") })
		if text := health("/livez"); !strings.Contains(text, "livez check passed") {
			t.Error(text)
		}
		read(t, in, "s", "hidden-by-the-plugin")
		keysFile(t, file, "aesgcm/one")
		until(t, "the server is ready", func() bool { return strings.Contains(health("/readyz"), "[+]kms-providers ok") })
		read(t, in, "s", "hidden-by-the-plugin")
	})
	withKeys(t, dir, apiserver.Encryption{ConfigFile: file}, func(in *instance) { read(t, in, "s", "hidden-by-the-plugin") })
}
