// Encryption at rest: what is written to the store, under which key.

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	reloading "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/hawser-project/hawser/auth/kubeauth/place"
)

// Encryption says which kinds are encrypted in the store, and how.
type Encryption struct {
	// ConfigFile is an apiserver.config.k8s.io/v1 EncryptionConfiguration. Empty means
	// that nothing is encrypted.
	ConfigFile string
	// Reload has the file read again, within a minute, when it has changed. One that is
	// broken by then is logged, and the keys stay as they were.
	Reload bool
}

// Check reads the file and says what is wrong. Errors begin with kube-apiserver's flag
// for it, without the dashes.
func (e Encryption) Check() error {
	if e.ConfigFile == "" {
		if e.Reload {
			return errors.New("encryption-provider-config-automatic-reload needs --encryption-provider-config")
		}
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, err := e.load(ctx, "")
	return err
}

// load reads the file. What it starts ends with ctx.
func (e Encryption) load(ctx context.Context, server string) (*encryptionconfig.EncryptionConfiguration, error) {
	c, err := encryptionconfig.LoadEncryptionConfig(ctx, e.ConfigFile, e.Reload, server)
	if err != nil {
		contents, _ := os.ReadFile(e.ConfigFile) // if that fails, err says so
		return nil, fmt.Errorf("encryption-provider-config %s: %w", e.ConfigFile, place.Of(contents, err))
	}
	return c, nil
}

// open has c check the keys, and returns what encrypts. Done is called when
// that is not in use any more.
func (e Encryption) open(c *genericapiserver.Config) (_ value.ResourceTransformers, done func(), err error) {
	if e.ConfigFile == "" {
		return encryptionconfig.StaticTransformers{}, func() {}, nil
	}
	keys, forget := context.WithCancel(context.Background())
	loaded, err := e.load(keys, c.APIServerID)
	if err != nil {
		forget()
		return nil, nil, err
	}
	if !e.Reload {
		addReadyChecks(c, loaded.HealthChecks...)
		return encryptionconfig.StaticTransformers(loaded.Transformers), forget, nil
	}
	// With Reload the library makes one check of all, and forgets keys that it replaces.
	dynamic := encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], forget, loaded.KMSCloseGracePeriod)
	addReadyChecks(c, dynamic)
	again := reloading.NewDynamicEncryptionConfiguration("encryption-config", e.ConfigFile, dynamic, loaded.EncryptionFileContentHash, c.APIServerID)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { again.Run(ctx) })
	return dynamic, func() {
		cancel()
		wg.Wait()
		forget()
	}, nil
}

// addReadyChecks adds to /readyz and /healthz: a server that cannot decrypt is not
// helped by being restarted, which is what /livez is for.
func addReadyChecks(c *genericapiserver.Config, checks ...healthz.HealthChecker) {
	c.HealthzChecks = append(c.HealthzChecks, checks...)
	c.ReadyzChecks = append(c.ReadyzChecks, checks...)
}
