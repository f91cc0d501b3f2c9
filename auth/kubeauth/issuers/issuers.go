// Package issuers authenticates tokens (JWT) of other issuers, such as a company's OpenID
// Connect provider, by Kubernetes' structured configuration: a file of the kind
// AuthenticationConfiguration (apiserver.config.k8s.io). The file's rules map the claims
// of tokens to users, all by k8s.io/apiserver's own code.
//
// The file is followed. A new version is used once it is complete and valid; otherwise the
// former one stays in use, and the error is logged once. An issuer whose entry is in it as
// before keeps its keys. While an issuer is down its tokens get 401 unless its keys are
// known, other tokens are not affected, and it is tried again every ten seconds.
//
// One rule is ours: an issuer cannot authenticate the cluster's own identities. A user or a
// group whose name starts with "system:" is refused. Bind a role to the issuer's groups
// instead.
//
// An issuer may be hostile: package answers bounds what is read of each of its answers.
package issuers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"
	api "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	certutil "k8s.io/client-go/util/cert"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/answers"
	"github.com/hawser-project/hawser/auth/kubeauth/place"
)

// what describes the file in errors and in the log.
const what = "issuers of tokens"

const (
	// kept is how long a valid token is cached.
	kept = 10 * time.Second
	// askTimeout bounds a request to an issuer, as in the library.
	askTimeout = 30 * time.Second
)

// Config configures Issuers.
type Config struct {
	File string // required
	// Own are the cluster's own issuers: the file may not name them.
	Own []string
	// Audiences are those of the API server, for which the tokens are valid.
	Audiences authenticator.Audiences
	// Files follows the file. Nil means one of its own.
	Files *auth.Files
}

// Issuers are those of the file. AuthenticateToken may be called at any time.
type Issuers struct {
	cfg      Config
	compiler authenticationcel.Compiler
	file     *auth.File[*generation]

	mu      sync.Mutex // guards the following
	current []*issuer
	closed  bool
}

var _ authenticator.Token = (*Issuers)(nil)

// A generation is one version of the file.
type generation struct {
	tokens authenticator.Token // nil if there is no issuer
}

// An issuer is an entry of the file, and outlives the versions in which that is the same.
type issuer struct {
	entry  api.JWTAuthenticator
	tokens authenticator.Token
	stop   context.CancelFunc // ends the requests to the issuer
}

// Check reads and checks the file. It makes no request to an issuer.
func Check(c Config) error {
	i := &Issuers{cfg: c, compiler: authenticationcel.NewDefaultCompiler()}
	_, err := auth.Follow(&auth.Files{}, what, func(contents [][]byte) (*api.AuthenticationConfiguration, error) {
		return i.parse(contents[0])
	}, c.File)
	return err
}

// New reads the file. The caller calls Close.
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

// Close ends the requests to the issuers. AuthenticateToken should not be called any more.
func (i *Issuers) Close() {
	i.mu.Lock()
	i.closed = true
	i.mu.Unlock()
	i.use(nil)
}

// use replaces the issuers by list, or by none after Close, and ends all others.
func (i *Issuers) use(list []*issuer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := slices.Concat(i.current, list)
	if i.current = list; i.closed {
		i.current = nil
	}
	for _, is := range all {
		if !slices.Contains(i.current, is) {
			is.stop()
		}
	}
}

// used returns the issuer in use that has the entry; nil if there is none.
func (i *Issuers) used(entry *api.JWTAuthenticator) *issuer {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, is := range i.current {
		if reflect.DeepEqual(&is.entry, entry) {
			return is
		}
	}
	return nil
}

// read makes a generation of the file.
func (i *Issuers) read(contents [][]byte) (*generation, error) {
	c, err := i.parse(contents[0])
	if err != nil {
		return nil, err
	}
	return i.generation(c)
}

// parse returns the configuration in a file, or its errors with the line of the first.
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
	faults := validation.ValidateAuthenticationConfiguration(i.compiler, c, i.cfg.Own)
	for n, jwt := range c.JWT {
		if jwt.Issuer.EgressSelectorType != "" {
			faults = append(faults, field.Forbidden(field.NewPath("jwt").Index(n).Child("issuer", "egressSelectorType"), "issuers are asked directly: take it out"))
		}
	}
	return c, faults.ToAggregate()
}

// generation puts the issuers of c into use.
func (i *Issuers) generation(c *api.AuthenticationConfiguration) (*generation, error) {
	var (
		list, fresh []*issuer
		tokens      []authenticator.Token
	)
	for n := range c.JWT {
		is := i.used(&c.JWT[n])
		if is == nil {
			var err error
			if is, err = i.issuer(c.JWT[n]); err != nil {
				for _, f := range fresh {
					f.stop()
				}
				return nil, fmt.Errorf("issuer %s: %w", c.JWT[n].Issuer.URL, err)
			}
			fresh = append(fresh, is)
		}
		list, tokens = append(list, is), append(tokens, is.tokens)
	}
	i.use(list)
	g := &generation{}
	if len(tokens) > 0 {
		g.tokens = tokencache.New(union.NewFailOnError(tokens...), false, kept, 0)
	}
	return g, nil
}

// issuer starts to read the keys of one.
func (i *Issuers) issuer(entry api.JWTAuthenticator) (*issuer, error) {
	client, err := asking(&entry.Issuer)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	t, err := oidc.New(ctx, oidc.Options{
		JWTAuthenticator: *entry.DeepCopy(), Compiler: i.compiler, DisallowedIssuers: i.cfg.Own,
		SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(), Client: client,
	})
	if err != nil {
		cancel()
		return nil, err
	}
	return &issuer{entry, authenticator.WrapAudienceAgnosticToken(i.cfg.Audiences, foreign{t}), cancel}, nil
}

// AuthenticateToken implements authenticator.Token.
func (i *Issuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if g := i.file.Get(); g.tokens != nil {
		return g.tokens.AuthenticateToken(ctx, token)
	}
	return nil, false, nil
}

// asking returns a client like the library's own, which bounds what it reads of an answer.
func asking(i *api.Issuer) (*http.Client, error) {
	var roots *x509.CertPool // nil means the machine's
	if i.CertificateAuthority != "" {
		var err error
		if roots, err = certutil.NewPoolFromBytes([]byte(i.CertificateAuthority)); err != nil {
			return nil, fmt.Errorf("certificateAuthority: %w", err)
		}
	}
	t := utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}})
	return &http.Client{Transport: answers.Bound(t), Timeout: askTimeout}, nil
}

// foreign refuses users with names of the cluster's own.
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
