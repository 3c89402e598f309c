"""`penstock up --secure`: certificates, an administrator and settings for a broker with TLS and authentication.

- `authority`: the certificate authority and the broker's certificate
- `setup`: what one start needs
"""
