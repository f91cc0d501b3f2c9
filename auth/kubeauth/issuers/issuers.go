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
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/kubeauth/place"
)

// what the file says, in errors and in the log.
const what = "issuers of tokens"

// kept is how long a token is believed without another look at it.
const kept = 10 * time.Second

// Config configures Issuers.
type Config struct {
	File string // required
	// Own are issuers whose tokens are the cluster's own: the file may not name them.
	Own []string
	// Audiences are those of the API server, which the tokens count for.
	Audiences authenticator.Audiences
	// Files reads the file, whenever it has changed. Nil means one of its own.
	Files *auth.Files
}

// Issuers are those of the file. AuthenticateToken may be called at any time.
type Issuers struct {
	cfg      Config
	compiler authenticationcel.Compiler
	file     *auth.File[*generation]

	mu      sync.Mutex // guards the following
	current *generation
	closed  bool
}

var _ authenticator.Token = (*Issuers)(nil)

// A generation is what one version of the file says.
type generation struct {
	tokens authenticator.Token // nil if there is no issuer
	stop   context.CancelFunc  // ends what the issuers are asked
}

// Check reads the file and says what is wrong with it. It asks no issuer.
func Check(c Config) error {
	i := &Issuers{cfg: c, compiler: authenticationcel.NewDefaultCompiler()}
	_, err := auth.Follow(&auth.Files{}, what, func(contents [][]byte) (*api.AuthenticationConfiguration, error) {
		return i.parse(contents[0])
	}, c.File)
	return err
}

// New reads the file. Close ends what it has begun.
func New(c Config) (*Issuers, error) {
	if c.Files == nil {
		c.Files = &auth.Files{}
	}
	i := &Issuers{cfg: c, compiler: authenticationcel.NewDefaultCompiler()}
	file, err := auth.Follow(c.Files, what, i.read, c.File)
	if err != nil {
		return nil, err
	}
	i.file = file
	return i, nil
}

// Close ends what the issuers are asked. Tokens should not be asked about any more.
func (i *Issuers) Close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	i.current.stop()
}

// use ends the generation before g, or g itself after Close.
func (i *Issuers) use(g *generation) {
	i.mu.Lock()
	defer i.mu.Unlock()
	ends := i.current
	if i.closed {
		ends = g
	}
	if ends != nil {
		ends.stop()
	}
	i.current = g
}

// read takes a version of the file over.
func (i *Issuers) read(contents [][]byte) (*generation, error) {
	c, err := i.parse(contents[0])
	if err != nil {
		return nil, err
	}
	g, err := i.generation(c)
	if err != nil {
		return nil, err
	}
	i.use(g)
	return g, nil
}

// parse returns what a file says, or its faults with the line of the first.
func (i *Issuers) parse(text []byte) (*api.AuthenticationConfiguration, error) {
	c, err := i.decode(text)
	if err != nil {
		return nil, place.Of(text, err)
	}
	return c, nil
}

func (i *Issuers) decode(text []byte) (*api.AuthenticationConfiguration, error) {
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
	if g := i.file.Get(); g.tokens != nil {
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
