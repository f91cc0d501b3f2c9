// Package issuers believes tokens (JWT) of others, such as a company's OpenID Connect
// provider, by Kubernetes' structured configuration: a file of the kind
// AuthenticationConfiguration (apiserver.config.k8s.io). What tokens say becomes a user
// by its rules, all by k8s.io/apiserver's own code.
//
// The file is followed. A new one counts once it is whole and right; otherwise what was
// there goes on, and the fault is told once. An issuer that is down costs those who
// have its tokens 401, nobody else, and is asked again every ten seconds.
//
// One rule is ours: whoever another issuer speaks for is nobody of the cluster's own. A
// user or a group whose name begins with "system:" is refused. Bind a role to the
// issuer's groups instead.
package issuers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	api "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
)

const (
	// Period is how often the file is looked at.
	Period = 10 * time.Second
	// kept is how long a token is believed without another look at it.
	kept = 10 * time.Second
	// maxFile bounds the file, in bytes.
	maxFile = 1 << 20
)

// Config configures Issuers.
type Config struct {
	File string // required
	// Own are issuers whose tokens are the cluster's own: the file may not name them.
	Own []string
	// Audiences are those of the API server, which the tokens count for.
	Audiences authenticator.Audiences
	Log       *slog.Logger // nil means discard
}

// Issuers are those of the file. AuthenticateToken may be called at any time.
type Issuers struct {
	cfg      Config
	compiler authenticationcel.Compiler
	current  atomic.Pointer[generation]

	mu   sync.Mutex // held while the file is read
	text []byte     // of the file when it was last read
}

var _ authenticator.Token = (*Issuers)(nil)

// A generation is what one version of the file says.
type generation struct {
	tokens authenticator.Token // nil if there is no issuer
	stop   context.CancelFunc  // ends what the issuers are asked
}

// New reads the file. Close ends what it has begun.
func New(c Config) (*Issuers, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	i := &Issuers{cfg: c, compiler: authenticationcel.NewDefaultCompiler()}
	if err := i.read(); err != nil {
		return nil, err
	}
	return i, nil
}

// Run follows the file until ctx is done, and closes i.
func (i *Issuers) Run(ctx context.Context) error {
	defer i.Close()
	tick := time.NewTicker(Period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := i.read(); err != nil {
				i.cfg.Log.Warn("the issuers of tokens stay as they were", "err", err)
			}
		}
	}
}

// Close ends what the issuers are asked. Tokens are refused from then on.
func (i *Issuers) Close() {
	if g := i.current.Swap(&generation{stop: func() {}}); g != nil {
		g.stop()
	}
}

// read takes the file over if it has changed. A version that is wrong is told once.
func (i *Issuers) read() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	text, err := os.ReadFile(i.cfg.File)
	if err != nil {
		if bytes.Equal(i.text, []byte(err.Error())) {
			return nil // it has been told
		}
		i.text = []byte(err.Error())
		return err
	}
	if i.text != nil && bytes.Equal(text, i.text) {
		return nil
	}
	i.text = text
	c, err := i.parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", i.cfg.File, err)
	}
	g, err := i.generation(c)
	if err != nil {
		return fmt.Errorf("%s: %w", i.cfg.File, err)
	}
	if was := i.current.Swap(g); was != nil {
		was.stop()
		i.cfg.Log.Info("the issuers of tokens are new", "file", i.cfg.File, "issuers", len(c.JWT))
	}
	return nil
}

// parse returns what a file says, or the first fault with its place.
func (i *Issuers) parse(text []byte) (*api.AuthenticationConfiguration, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("it has %d bytes, at most %d are read", len(text), maxFile)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), text)
	if err != nil {
		return nil, err
	}
	c, ok := obj.(*api.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("it is of the kind %T, not AuthenticationConfiguration", obj)
	}
	if c.Anonymous != nil {
		return nil, errors.New("anonymous: take it out, requests without credentials may ask for health and version only")
	}
	if err := validation.ValidateAuthenticationConfiguration(i.compiler, c, i.cfg.Own).ToAggregate(); err != nil {
		return nil, err
	}
	return c, nil
}

// generation begins to ask the issuers of c for their keys.
func (i *Issuers) generation(c *api.AuthenticationConfiguration) (*generation, error) {
	ctx, cancel := context.WithCancel(context.Background())
	g := &generation{stop: cancel}
	var tokens []authenticator.Token
	for _, jwt := range c.JWT {
		options := oidc.Options{
			JWTAuthenticator: jwt, Compiler: i.compiler, DisallowedIssuers: i.cfg.Own,
			SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(),
		}
		if ca := jwt.Issuer.CertificateAuthority; ca != "" {
			options.CAContentProvider = authority(ca)
		}
		t, err := oidc.New(ctx, options)
		if err != nil {
			cancel()
			return nil, fmt.Errorf("issuer %s: %w", jwt.Issuer.URL, err)
		}
		tokens = append(tokens, authenticator.WrapAudienceAgnosticToken(i.cfg.Audiences, foreign{t}))
	}
	if len(tokens) > 0 {
		g.tokens = tokencache.New(union.NewFailOnError(tokens...), false, kept, 0)
	}
	return g, nil
}

// AuthenticateToken implements authenticator.Token.
func (i *Issuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if g := i.current.Load(); g.tokens != nil {
		return g.tokens.AuthenticateToken(ctx, token)
	}
	return nil, false, nil
}

// authority is an issuer's own, in PEM.
type authority string

func (a authority) CurrentCABundleContent() []byte { return []byte(a) }

// foreign refuses users who would be the cluster's own.
type foreign struct{ tokens authenticator.Token }

const reserved = "system:"

func (f foreign) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	resp, ok, err := f.tokens.AuthenticateToken(ctx, token)
	if !ok || err != nil {
		return resp, ok, err
	}
	name := resp.User.GetName()
	if name == "" {
		return nil, false, errors.New("token of another issuer names no user")
	}
	if strings.HasPrefix(name, reserved) {
		return nil, false, fmt.Errorf("token of another issuer for the user %q: names that begin with %s are the cluster's own", name, reserved)
	}
	for _, g := range resp.User.GetGroups() {
		if strings.HasPrefix(g, reserved) {
			return nil, false, fmt.Errorf("token of another issuer for the group %q: names that begin with %s are the cluster's own", g, reserved)
		}
	}
	return resp, true, nil
}
